"""`python -m task` is `dial-agent`."""

from task.cli import main

if __name__ == "__main__":
    main()
