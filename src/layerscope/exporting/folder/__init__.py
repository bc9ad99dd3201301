"""What is in an exported folder: the cut model, its tokenizer, the modules around it, ONNX on request."""
