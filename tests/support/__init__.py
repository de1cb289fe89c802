"""What tests share: servers and processes to test against."""
