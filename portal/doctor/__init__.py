"""Looks at everything that Dockyard stands on, and says what to mend: `examine.examine`. `mend` mends what is safe."""
