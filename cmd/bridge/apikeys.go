package main

// apiConfig is what operators may ask over NATS.
type apiConfig struct{ enabled, mutations bool }

// apiKeys say what the admin API does.
var apiKeys = []*key{
	{name: "api.enabled", def: "true", unit: "true or false",
		help: "answer operators over NATS, as the micro service delaybridge", set: yesNo(func(c *config) *bool { return &c.api.enabled })},
	{name: "api.mutations", def: "true", unit: "true or false", reload: true,
		help: "answer them also when they change something: cancel, reschedule, fire, requeue, purge, pause, resume", set: yesNo(func(c *config) *bool { return &c.api.mutations })},
}
