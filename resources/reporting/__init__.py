"""`millrace report data`: statistics and previews of a lake's data as one page."""
