"""Workers: processes that a target may crash or hang, and what is learned when one does."""
