"""``python -m millrace``: the command ``millrace``, where its script is not on the path."""

from millrace.cli.main import main

if __name__ == "__main__":
    main(prog_name="millrace")
