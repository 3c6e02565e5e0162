package redisdelay

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// deniedLine is how Redis 7.0 says that a script ran a command which its user may not
// run: it names only the line.
var deniedLine = regexp.MustCompile(`executing the script can't run this command.*@user_script:(\d+)`)

// denied adds to such an answer which command is to be allowed. Other errors stay as
// they are.
func denied(source string, err error) error {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return err
	}
	m := deniedLine.FindStringSubmatch(reply.Error())
	if m == nil {
		return err
	}
	line, _ := strconv.Atoi(m[1]) // digits
	commands := commandsOfLine(source, line)
	if len(commands) == 0 {
		return err
	}
	return fmt.Errorf("%w: allow the Redis user %s", err, strings.Join(commands, " "))
}

// commandsOfLine returns what the statement that ends in this line of a script calls,
// as ACL rules.
func commandsOfLine(source string, line int) (rules []string) {
	lines := strings.Split(source, "\n")
	for i := min(line, len(lines)) - 1; i >= 0 && len(rules) == 0; i-- {
		for _, m := range scriptCall.FindAllStringSubmatch(lines[i], -1) {
			rules = append(rules, "+"+strings.ToLower(m[1]))
		}
	}
	slices.Sort(rules)
	return slices.Compact(rules)
}
