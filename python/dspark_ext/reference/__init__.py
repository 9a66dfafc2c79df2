"""The specification in readable float64 torch; one module per operator family."""
