"""Models of Hugging Face's transformers, adapters of its PEFT, and text for them."""
