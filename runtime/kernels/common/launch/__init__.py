"""How a kernel is chosen, compiled and launched: device facts, argument checks, device-code helpers, overlap."""
