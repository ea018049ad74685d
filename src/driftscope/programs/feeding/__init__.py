"""What programs are fed: inputs that can be made again anywhere, fitted to one program or to two."""
