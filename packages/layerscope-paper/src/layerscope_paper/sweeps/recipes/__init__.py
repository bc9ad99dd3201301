"""Plans that come with the package: `layerscope-paper sweep NAME` runs one."""
