"""The version, in one place: packaging, manifests and the command line read it from here."""

VERSION = "0.1.0"
