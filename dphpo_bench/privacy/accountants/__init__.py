"""From events to ε: several bounds, and the tightest of them."""
