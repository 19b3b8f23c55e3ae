"""Known fixes, their reversal, and candidate patches."""
