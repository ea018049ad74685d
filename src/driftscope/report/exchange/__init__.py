"""Records in the formats of other tools: GitHub, SARIF, Model Explorer."""
