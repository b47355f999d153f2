"""A benchmark on a user's own storage: bounded, priced, proved, and gone afterwards."""
