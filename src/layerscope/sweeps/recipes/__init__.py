"""Plans that come with the package: `layerscope sweep NAME` runs one."""
