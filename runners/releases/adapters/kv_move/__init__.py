"""How each generation of sglang moves KV rows after a verify step and before a draft."""
