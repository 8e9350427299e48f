"""What the commands of `hermes-gateway` do; one file each, imported when asked for."""
