"""The version of Epochlake, in the lowest package: setup.cfg and all other packages take it from here."""

PRODUCT_VERSION = "0.1.0"
