"""Plan a deployment before anything loads: rules, memory, budget, speed estimates, selection, rendering."""
