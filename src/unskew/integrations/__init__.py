"""unskew in other tools: TensorBoard, MLflow, Weights & Biases, the Hugging Face Hub and scikit-learn.

Each module needs a package of its own, which is imported when it is used."""
