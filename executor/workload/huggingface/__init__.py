"""Models of Hugging Face transformers: by name, and with documents of every length."""

from executor.workload.huggingface.documents import causal_lm
from executor.workload.huggingface.named import PREFIX, Options, completed, load, parse, ref
