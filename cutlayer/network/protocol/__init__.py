"""What server and clients agree on: settings, the handshake, the contract, the codec."""
