"""`python -m ray_adaplr` is `ray-adaplr`."""

from ray_adaplr.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
