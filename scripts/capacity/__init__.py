"""How many machines how many people need: assumptions, measured costs, a simulation, and the page made from them."""
