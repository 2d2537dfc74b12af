"""MoE dispatch+GEMM of PyTorch and NCCL, as a baseline: torch_moe.py says how it is called and what it prints."""
import torch_moe

torch_moe.main(layer=False)
