"""layerscope: what every layer of a neural network holds, and which layer to read embeddings from."""

__version__ = "0.1.0"
