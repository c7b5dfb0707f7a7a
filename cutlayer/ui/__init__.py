"""What people and programs see of a run over the network: a page to watch, and figures to scrape."""
