"""`python -m assay.cli`: the command for a given interpreter, installed or not."""

from assay.cli.app import main

if __name__ == "__main__":
    main()
