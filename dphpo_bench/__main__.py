"""`python -m dphpo_bench` is `dphpo-bench`."""

from dphpo_bench.cli.commands import main

if __name__ == "__main__":
    main()
