"""Several teachers of one task: what adds up, and the signed links that say so."""
