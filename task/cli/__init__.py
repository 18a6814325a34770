"""The command `dial-agent`."""


def main() -> None:
    """Run the command line; imported late, so that parts of this room cost no more than themselves."""
    from task.cli.app import main

    main()
