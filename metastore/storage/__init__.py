"""Storage as a value: places, how they fail, deadlines, what is on the disk, and all access to them."""
