"""The commands, a file each: ``add`` makes its part of the command line, a function of the same name carries it out."""
