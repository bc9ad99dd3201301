"""`python -m layerscope` is the `layerscope` command."""

from layerscope.cli import main

if __name__ == "__main__":
    main()
