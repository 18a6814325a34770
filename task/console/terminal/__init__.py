"""What the console draws and reads at a terminal."""
