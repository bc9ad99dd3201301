"""Plans that come with the package: `layerscope recipe NAME` runs one."""
