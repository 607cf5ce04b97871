"""`millrace rebuild`: makes an artefact again from its manifest and compares the bytes."""
