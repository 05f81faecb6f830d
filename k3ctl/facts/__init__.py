"""What is known beforehand, each fact in one place: Kimi K3's sizes and limits, GPU products, published numbers."""
