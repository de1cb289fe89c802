"""A whole cluster in a directory and a process, for tests of programs that use Epochlake: `epochlake.testing`."""
