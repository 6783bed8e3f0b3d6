"""An agent's stored state: home folder, bank of modules, ledger, validation images."""
