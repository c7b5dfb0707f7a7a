"""Models as this package sees them: blocks, a cut, flat rows of weights."""
