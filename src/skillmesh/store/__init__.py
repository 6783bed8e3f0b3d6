"""What an agent keeps in its home: bank, ledger, validation images."""
