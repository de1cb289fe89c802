"""The elected process that moves operations and tablets forward."""
