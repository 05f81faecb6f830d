"""Plan a deployment before anything loads: rules, memory, batch budget, speed estimates, selection, rendering."""
