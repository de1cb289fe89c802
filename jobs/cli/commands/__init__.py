"""The commands, a module for each subject: they read arguments, call the functions of `jobs/`, hand over documents."""
