"""The ``kinetic`` command, and ``python -m kinetic``, for where the script is not on the PATH."""


def main() -> None:
    """Import the command and run it; Ctrl-C meanwhile ends it without a traceback, as later."""
    try:
        from kinetic._cli import main as command  # a tenth of a second
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    command.main()


if __name__ == "__main__":
    main()
