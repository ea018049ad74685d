"""From a refusal or another value to its cause and place."""
