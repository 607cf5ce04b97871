select identity, words from documents
